"""What a measured student keeps of its teacher: measured by the first process, written into the run's folder, the same after any resume."""

import json

import torch

from ..cache import Cache
from ..config import DistillConfig
from ..group import Group
from ..paths import publish
from ..progress import Progress
from ..runs import Run
from ..structure import Structure, choose

FILE = "structure.json"
"""In the run's folder: {"layers": [...], "units": [[...], ...]}, as the teacher numbers them."""


def agreed_structure(run: Run, config: DistillConfig, cache: Cache, device: torch.device, progress: Progress, group: Group) -> Structure:
    """Read from the run's folder, or measured now; all processes of a launch get the same. Raises ConfigError and ModelError."""
    path, found = run.folder / FILE, None
    if group.is_first:
        if not path.exists():
            progress.phase("choosing what the student keeps")
            publish(path, json.dumps(choose(config, cache, device, progress.say).to_dict()))
        found = json.loads(path.read_text(encoding="utf-8"))
    structure = Structure.from_dict(group.agreed(found))
    words = f"the student keeps layers {', '.join(map(str, structure.layers))} of its teacher"
    progress.say(words + (f", and {len(structure.units[0]):,} feed-forward units of each" if structure.units else ""))
    if group.is_first:
        run.update(result=run.stored_status().result | {"kept_layers": list(structure.layers)})
    return structure
