from pathlib import Path

import pytest
import torch

from partita.cli.target import load_target
from partita.compiler.errors import BadOptions

GOOD = """
import torch
def build():
    return torch.nn.Linear(2, 3), [torch.ones(1, 2)], {}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "made.py"
    path.write_text(text)
    return str(path)


def refusal(text: str) -> str:
    with pytest.raises(BadOptions) as caught:
        load_target(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_file_gives_model_args_and_kwargs(tmp_path: Path) -> None:
    example = load_target(f"{write(tmp_path, GOOD)}:build")
    assert isinstance(example.model, torch.nn.Linear)
    assert [list(arg.shape) for arg in example.args] == [[1, 2]]
    assert example.kwargs == {}


def test_file_is_run_once(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    models = [load_target(f"{path}:build").model for _ in range(2)]
    assert type(models[0]) is type(models[1])


def test_file_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "made_neighbour_of_a_target.py").write_text(GOOD)
    text = "from made_neighbour_of_a_target import build\n"
    assert load_target(f"{write(tmp_path, text)}:build").kwargs == {}


def test_module_is_found_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "made_package_of_a_target"
    package.mkdir()
    (package / "models.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert load_target("made_package_of_a_target.models:build").args


@pytest.mark.parametrize("text", ["", "build", ":build", "x.py:", "x.py:a b", "x.py:1"])
def test_other_forms_are_refused(text: str) -> None:
    assert refusal(text).startswith(
        f"TARGET {text!r}: want file.py:function or package.module:function"
    )


def test_missing_file_module_and_function_are_named(tmp_path: Path) -> None:
    assert refusal("none.py:f") == "TARGET none.py:f: there is no Python file 'none.py'"
    assert refusal("no_such_package.x:f") == (
        "TARGET no_such_package.x:f: there is no module 'no_such_package'; for a file "
        "write file.py:function"
    )
    path = write(tmp_path, GOOD)
    assert refusal(f"{path}:built") == (
        f"TARGET {path}:built: {path} has no function built; did you mean build?"
    )
    assert refusal(f"{path}:torch") == (
        f"TARGET {path}:torch: {path} holds no function, but torch"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import no_such",
            "raised ModuleNotFoundError at {path}:1: No module",
        ),
        ("def f(:", "raised SyntaxError at {path}:1: invalid syntax"),
        ("1 / 0", "raised ZeroDivisionError at {path}:1: division by zero"),
        ("exit(3)", "raised SystemExit at "),
        (
            "def f():\n    raise ValueError('a\\nb')",
            "raised ValueError at {path}:2: a b",
        ),
        ("def f(x): ...", "raised TypeError"),
    ],
)
def test_failing_code_is_told_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    assert message.format(path=path) in refusal(f"{path}:f")


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("None", "None"),
        ("model", "a Linear"),
        ("(model, ())", "a tuple of 2"),
        ("(1, (), {})", "a int as the model (an nn.Module)"),
        ("(model, 1, {})", "a int as args (a tuple)"),
        ("(model, (), [])", "a list as kwargs (a dict with names as keys)"),
        ("(model, (), {1: 2})", "a dict as kwargs (a dict with names as keys)"),
    ],
)
def test_wrong_return_says_what_is_wanted(
    tmp_path: Path, returned: str, found: str
) -> None:
    text = f"import torch\nmodel = torch.nn.Linear(1, 1)\ndef f(): return {returned}\n"
    path = write(tmp_path, text)
    assert refusal(f"{path}:f") == (
        f"TARGET {path}:f: f() returned {found}; want (model, args, kwargs), e.g. "
        "(model, (x,), {}) or (model, (), {'input_ids': ids})"
    )
