"""Imports only go down, an app never loads torch, and nothing heavy happens at import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "distill_core"
FLOORS = {
    0: {
        "capture_config", "chain_config", "config", "errors", "faults", "hf_arguments", "language", "loss_config", "paths", "section",
        "student_config", "text_config", "train_config", "units", "write_config",
    },
    1: {
        "cache", "catalog", "chain", "charts", "comparison", "corpus", "engines", "frozen", "jobs", "judgement", "layer_map", "limits",
        "memory", "merging", "metrics", "panel", "pictures", "playground", "practice", "processes", "progress", "push", "refusals",
        "remedies", "room", "runs", "sweep", "techniques", "texts", "translation", "waiting", "walk",
    },
    2: {
        "adapters", "batches", "capture_plan", "continued", "device", "generation", "group", "heads", "hidden_states", "images",
        "independence", "losses", "models", "multipliers", "perturbation", "positions", "routers", "scoring", "sparse", "structure",
        "students", "view_reading",
    },
    3: {"bench", "benchmarks", "capture", "evaluate", "export", "faithfulness", "robustness", "trainer", "training", "translate", "write"},
    4: {
        "__main__", "bench_commands", "cache_commands", "chain_commands", "cli", "commands", "data_commands", "foreground",
        "launched", "parsers", "serve", "student_commands", "sweep_commands", "worker", "write_commands",
    },
}  # fmt: skip
FLOOR_OF = {module: floor for floor, modules in FLOORS.items() for module in modules}
HEAVY = {"torch", "transformers", "accelerate", "triton", "marimo"}
LATE = {"datasets", "huggingface_hub", "gguf", "vl_convert", "ray", "submitit", "optuna"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path, *, top_level_only=False):
    """(own module or None, outside package or None) of every import statement."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    depth = len(path.relative_to(PACKAGE).parts)
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield None, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield None, (node.module or "").split(".")[0]
            elif node.level == depth:
                for target in [node.module] if node.module else [alias.name for alias in node.names]:
                    yield target.split(".")[0], None


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    here = FLOOR_OF.get(name_of(path))
    assert here is not None, f"{path.name} stands on no floor: add it to FLOORS"
    for own, outside in imports(path):
        if own in FLOOR_OF:
            assert FLOOR_OF[own] <= here, f"{path.name} (floor {here}) imports {own} (floor {FLOOR_OF[own]})"
        if outside in HEAVY and here < 2:
            raise AssertionError(f"{path.name} (floor {here}) imports {outside}")
    for _, outside in imports(path, top_level_only=True):
        assert outside not in LATE, f"{path.name} imports {outside} at its top: import it in the function that needs it"


def test_floor_names_exist():
    existing = {name_of(path) for path in modules()}
    assert set(FLOOR_OF) - existing == set(), "FLOORS names modules that are gone"


def test_apps_import_the_lower_floors_only():
    for path in sorted((ROOT / "apps").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "distill_core":
                names = [node.module.split(".")[1]] if "." in node.module else [alias.name for alias in node.names]
                assert all(FLOOR_OF.get(name, 0) <= 1 for name in names), f"{path.name} imports {names}"


def test_importing_the_package_and_the_app_floors_loads_no_torch():
    app_floors = ", ".join(f"distill_core.{name}" for floor in (0, 1) for name in sorted(FLOORS[floor]))
    code = f"import sys, distill_core\nimport {app_floors}\nprint([name for name in {sorted(HEAVY | LATE)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 300, f"{path.name} has more than 300 lines: find its second subject and give it a file"


def test_nothing_is_called_utils():
    assert not {path.stem for path in modules()} & {"utils", "helpers", "manager", "processor", "common", "misc"}
