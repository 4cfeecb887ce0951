"""What the programs of pipeline stages call what passes between them.

A stage's program is a joint program of its own. What another stage makes enters under
the printed reference of that tensor and leaves its maker under that reference and the
stage that it is for; a parameter or buffer that several stages use has one home, the
stage that updates it, and enters the others under its name.
"""

from __future__ import annotations


def at_stage(key: str, stage: int) -> str:
    """Return the key of a placeholder that stands for the same thing in another stage.

    >>> at_stage("parameter:wte.weight", 3)
    'parameter:wte.weight at stage 3'
    """
    return f"{key} at stage {stage}"


def at_any_stage(key: str) -> str:
    """Return the key of what a placeholder stands for, whichever stage has it.

    >>> at_any_stage(at_stage("tanh/0", 1)), at_any_stage("tanh/0")
    ('tanh/0', 'tanh/0')
    """
    own, joint, _ = key.rpartition(" at stage ")
    return own if joint else key


def sent_name(ref: str, stage: int) -> str:
    """Return the name of the output that sends a tensor to a stage.

    >>> sent_name("h.0/add/0", 1)
    'h.0/add/0 to stage 1'
    """
    return f"{ref} to stage {stage}"


def shared_gradient_name(parameter: str, stage: int) -> str:
    """Return the name of the part of a gradient that a stage makes.

    >>> shared_gradient_name("wte.weight", 3)
    'wte.weight of stage 3'
    """
    return f"{parameter} of stage {stage}"


def receiver_of(name: str) -> tuple[str, int]:
    """Return the tensor and the stage that ``sent_name`` names.

    >>> receiver_of(sent_name("h.0/add/0", 1))
    ('h.0/add/0', 1)
    """
    ref, _, stage = name.rpartition(" to stage ")
    return ref, int(stage)


def sender_of(name: str) -> tuple[str, int]:
    """Return the parameter and the stage that ``shared_gradient_name`` names.

    >>> sender_of(shared_gradient_name("wte.weight", 3))
    ('wte.weight', 3)
    """
    parameter, _, stage = name.rpartition(" of stage ")
    return parameter, int(stage)
