"""Everything private of torch that Partita uses, in one package.

An upgrade of torch that moves one of these names breaks this package alone. Each
function or name says in one line what it stands for.
"""

from torch._decomp import decompositions
from torch._functorch._aot_autograd import descriptors
from torch.utils import _pytree as pytree

from partita.compiler.capture.torch_private.flash_attention import (
    cpu_flash_attention,
    cpu_flash_attention_backward,
    cuda_flash_attention,
    cuda_flash_attention_backward,
)
from partita.compiler.capture.torch_private.groups import (
    flight_records,
    name_group,
    ranks_of_group,
)
from partita.compiler.capture.torch_private.inductor import (
    Code,
    compile_graph,
)
from partita.compiler.capture.torch_private.modes import (
    DispatchMode,
    FakeMode,
    below_autograd,
    fake_tensor_mode,
    static_fake_mode,
)
from partita.compiler.capture.torch_private.modules import (
    BatchNorm,
    fake_copy,
    own_tensors,
    tables_of,
    with_parts,
)
from partita.compiler.capture.torch_private.schemas import (
    argument_names,
    makes_tensors,
    may_share_memory,
    tensor_slots,
    writes_in_place,
)
from partita.compiler.capture.torch_private.tracing import (
    any_name,
    around_checkpoints,
    around_recurrent_layers,
    export_joint,
    keeping_notes,
    notes_of_trace,
    uncompiled,
    without_code,
    without_mkldnn,
    without_order,
)

__all__ = [
    "BatchNorm",
    "Code",
    "DispatchMode",
    "FakeMode",
    "any_name",
    "argument_names",
    "around_checkpoints",
    "around_recurrent_layers",
    "below_autograd",
    "compile_graph",
    "cpu_flash_attention",
    "cpu_flash_attention_backward",
    "cuda_flash_attention",
    "cuda_flash_attention_backward",
    "decompositions",
    "descriptors",
    "export_joint",
    "fake_copy",
    "fake_tensor_mode",
    "flight_records",
    "keeping_notes",
    "makes_tensors",
    "may_share_memory",
    "name_group",
    "notes_of_trace",
    "own_tensors",
    "pytree",
    "ranks_of_group",
    "static_fake_mode",
    "tables_of",
    "tensor_slots",
    "uncompiled",
    "with_parts",
    "without_code",
    "without_mkldnn",
    "without_order",
    "writes_in_place",
]
