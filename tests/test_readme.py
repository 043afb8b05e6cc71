"""The README tells the truth: every path exists, every command parses, the tree is complete, CI runs the test command it prints."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from distill_core.bench.techniques import techniques_table
from distill_core.cli import build_parser
from distill_core.techniques import TECHNIQUES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TREE = README.split("## Where things are")[1].split("```")[1]


def tree_paths():
    """Paths of the tree, from the indentation of two spaces a level; trailing comments are cut."""
    stack = []
    for line in TREE.splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.split(r"  +", line.strip())[0].split(", "):
            stack[depth:] = [name.rstrip("/")]
            yield "/".join(stack)


def commands():
    """Every command line of the program in the README, code blocks and tables alike, without trailing comments."""
    for line in re.findall(r"python -m distill_core ([^`\n]*)", README):
        yield re.split(r"\s{2,}#|\s#", line)[0].strip()


@pytest.mark.parametrize("path", list(tree_paths()))
def test_tree_paths_exist(path):
    assert (ROOT / path).exists()


def test_tree_names_every_module_and_app():
    named = set(tree_paths())
    package = ROOT / "distill_core"
    modules = {f"distill_core/{path.name}" for path in package.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"}
    apps = {f"apps/{path.name}" for path in (ROOT / "apps").glob("*.py")}
    assert (modules | apps) - named - {"distill_core/__init__.py"} == set()


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_parse(command):
    words = shlex.split(command)
    if "--help" in words or words[0] in ("…", "COMMAND"):
        return
    build_parser().parse_args(words)


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"--([a-z]+\.[a-z0-9_]+)", README))))
def test_settings_exist(setting):
    assert f"--{setting}" in build_parser().known_options()


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_picture_is_small_enough_for_a_first_look():
    assert (ROOT / "data" / "walk.png").stat().st_size < 400_000


def test_ci_runs_the_test_command_of_the_readme():
    extract = "sed -n '/^<!-- test command -->$/,/^```$/p' README.md | grep -v -e '^<!--' -e '^```'"
    assert extract in (ROOT / ".ci" / "run").read_text()
    printed = subprocess.run(["sh", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert printed == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"


def test_the_python_examples_compile():
    for block in re.findall(r"```python\n(.*?)```", README, re.S):
        subprocess.run([sys.executable, "-c", f"compile({block!r}, 'README', 'exec')"], check=True)


def test_the_table_of_techniques_is_what_was_measured():
    """data/techniques.jsonl is what `bench techniques --json` printed; README holds its table, with a row for every technique."""
    rows = [json.loads(line) for line in (ROOT / "data" / "techniques.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["technique"] for row in rows] == list(TECHNIQUES)
    assert all(row["num_seeds"] >= 3 and len(row["gains"]) == row["num_seeds"] for row in rows)
    assert techniques_table(rows) in README
