"""From AOTAutograd's descriptors to roles: what enters and what leaves the graph."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.inputs import InputSpec
from partita.compiler.capture.keys import (
    assign_keys,
    assign_phases,
    module_path,
    source_line,
)
from partita.compiler.capture.shared_memory import check_apart
from partita.compiler.capture.torch_private import descriptors, uncompiled
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    info,
    set_info,
    value_of,
)
from partita.compiler.ir.tensor_type import TensorType

_PREFIX = "model"  # the attribute of ScoredModel that holds the user's model
_BASES = descriptors.ViewBaseAOTInput, descriptors.SyntheticBaseAOTInput


def _aliases(model: torch.nn.Module) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return, per parameter or buffer name, its first name and all the others."""
    names: dict[int, list[str]] = {}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in tensors:
        names.setdefault(id(tensor), []).append(name)
    return {
        name: (group[0], tuple(group[1:])) for group in names.values() for name in group
    }


def _types(value: Any) -> tuple[TensorType | None, ...]:
    if isinstance(value, torch.Tensor):
        return (TensorType(tuple(int(s) for s in value.shape), value.dtype),)
    if isinstance(value, list | tuple):
        return tuple(_types(item)[0] if item is not None else None for item in value)
    return (None,)


def read_roles(
    joint: fx.GraphModule,
    model: torch.nn.Module,
    spec: InputSpec,
    output_names: tuple[str, ...],
    train: bool,
) -> Program:
    """Return a Program: a clean copy of ``joint``, infos in place of torch's meta.

    Outputs of ``joint`` are mutated buffers, the loss (when training), the named
    outputs, then gradients. A parameter that the model writes to, and that no optimizer
    updates, is a buffer of the program: the copy that follows another by its momentum.

    Raises:
        CaptureFailed: naming a trained parameter that the model writes to, or two
            tensors that share the memory that it writes to.
    """
    return _RoleReader(joint, model, spec, output_names, train).read()


class _RoleReader:
    """Turns AOTAutograd's descriptors into roles while it copies the graph."""

    def __init__(
        self,
        joint: fx.GraphModule,
        model: torch.nn.Module,
        spec: InputSpec,
        output_names: tuple[str, ...],
        train: bool,
    ) -> None:
        self.joint = joint
        self.model = model
        self.tensors = spec.tensors
        names = [OutputRole(OutputKind.OUTPUT, name) for name in output_names]
        self.plain = [OutputRole(OutputKind.LOSS, "loss")] * train + names
        self.aliases = _aliases(model)
        self.written = self._written()
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.inputs: list[InputRole] = []
        self.by_role: dict[InputRole, fx.Node] = {}
        self.constants: dict[str, torch.Tensor] = {}

    def _written(self) -> frozenset[str]:
        """Return the first names of the parameters that the model writes to."""
        (output,) = self.joint.graph.find_nodes(op="output")
        values: list[Any] = list(output.args[0])
        written = {
            self._named(desc.mutated_input)[0]: node
            for desc, node in zip(output.meta["desc"], values, strict=True)
            if isinstance(desc, descriptors.InputMutationAOTOutput)
            and isinstance(desc.mutated_input, descriptors.ParamAOTInput)
        }
        for name, node in sorted(written.items()):
            if self.model.get_parameter(name).requires_grad:
                source = source_line(node)
                raise CaptureFailed(
                    f"{f'{source}: ' if source else ''}the model writes to its "
                    f"parameter {name!r} in place, and so does the optimizer; write to "
                    "it behind optimizer.step(), make it a buffer, or set "
                    "requires_grad=False"
                )
        return frozenset(written)

    def _named(self, desc: Any) -> tuple[str, tuple[str, ...]]:
        """Return the first name of a parameter or buffer, and its others."""
        name = desc.target.removeprefix(f"{_PREFIX}.")
        return self.aliases.get(name, (name, ()))

    def read(self) -> Program:
        graph = self.joint.graph
        (output,) = graph.find_nodes(op="output")
        values: list[Any] = list(output.args[0])
        roles = [self._output_role(desc) for desc in output.meta["desc"]]
        gradients: dict[fx.Node, set[str]] = {}
        for node, role in zip(values, roles, strict=True):
            if (
                role is not None
                and role.kind is OutputKind.GRADIENT
                and node is not None
            ):
                gradients.setdefault(node, set()).add(role.name)
        keys = assign_keys(graph, _PREFIX)
        phases = assign_phases(graph, gradients)
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._copy_input(node)
        for node in graph.nodes:
            if node.op == "call_function":
                copy = self.graph.node_copy(node, self.copies.__getitem__)
                copy.meta = {}
                self.copies[node] = copy
                if node.target is not operator.getitem:
                    module = module_path(node, _PREFIX)
                    types = _types(node.meta.get("val"))
                    source = source_line(node)
                    fact = NodeInfo(keys[node], phases[node], types, module, source)
                    set_info(copy, fact)
        kept = [
            (self.copies[node], role)
            for node, role in zip(values, roles, strict=True)
            if node is not None and role is not None
        ]
        kept = self._with_sums_of_gradients(kept)
        self.graph.output(tuple(node for node, _ in kept))
        module = uncompiled(torch.nn.Module(), self.graph)
        outputs = tuple(role for _, role in kept)
        return Program(module, tuple(self.inputs), outputs, constants=self.constants)

    def _with_sums_of_gradients(
        self, kept: list[tuple[fx.Node, OutputRole]]
    ) -> list[tuple[fx.Node, OutputRole]]:
        """Add up the gradients that one parameter has under several names."""
        found: dict[OutputRole, fx.Node] = {}
        for node, role in kept:
            first = found.get(role)
            if first is None:
                found[role] = node
                continue
            fact = info(value_of(node).node)
            index = value_of(node).index
            total = self.graph.call_function(torch.ops.aten.add.Tensor, (first, node))
            key = f"{fact.key}~tied.{index}"
            set_info(total, replace(fact, key=key, types=(fact.types[index],)))
            found[role] = total
        return [(node, role) for role, node in found.items()]

    def _copy_input(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            name = f"constant.{len(self.constants)}"
            value: Any = self.joint
            for part in str(node.target).split("."):
                value = getattr(value, part)
            if isinstance(value, torch.Generator):
                raise CaptureFailed(
                    "random numbers are drawn from a generator of the model's own, "
                    "which ranks cannot share; draw from torch's, with no generator="
                )
            self.constants[name] = value.detach()
            role, types = InputRole(InputKind.CONSTANT, name), _types(value)
        else:
            role, types = self._input_role(node.meta["desc"]), _types(node.meta["val"])
        if role in self.by_role:  # another name of a tied parameter
            self.copies[node] = self.by_role[role]
            return
        copy = self.graph.placeholder(f"{role.kind.name.lower()}_{len(self.inputs)}")
        copy.meta = {}
        fact = NodeInfo(f"{role.kind}:{role.name}", Phase.FORWARD, types)
        set_info(copy, fact)
        self.inputs.append(role)
        self.copies[node] = self.by_role[role] = copy

    def _input_role(self, desc: Any) -> InputRole:
        if isinstance(desc, descriptors.ParamAOTInput | descriptors.BufferAOTInput):
            first, others = self._named(desc)
            is_kept = isinstance(desc, descriptors.ParamAOTInput)
            is_parameter = is_kept and first not in self.written
            kind = InputKind.PARAMETER if is_parameter else InputKind.BUFFER
            return InputRole(kind, first, others)
        if isinstance(desc, descriptors.PlainAOTInput):
            return InputRole(InputKind.INPUT, self.tensors[desc.idx])
        if isinstance(desc, _BASES):  # of views of one memory, one of them written to
            check_apart(self.model, {self._named(desc.base_of)[0]})
        assert isinstance(desc, descriptors.TangentAOTInput), desc
        return InputRole(InputKind.LOSS_SCALE, "loss_scale")

    def _output_role(self, desc: Any) -> OutputRole | None:
        if isinstance(desc, descriptors.PlainAOTOutput):
            return self.plain[desc.idx]
        if isinstance(desc, descriptors.InputMutationAOTOutput):
            role = self._input_role(desc.mutated_input)
            if role.kind is InputKind.BUFFER:
                return OutputRole(OutputKind.MUTATED_BUFFER, role.name)
            return None  # what was written to an input stays in the step
        if isinstance(desc, descriptors.GradAOTOutput) and isinstance(
            desc.grad_of, descriptors.ParamAOTInput
        ):
            role = self._input_role(desc.grad_of)
            return OutputRole(OutputKind.GRADIENT, role.name)
        return None
