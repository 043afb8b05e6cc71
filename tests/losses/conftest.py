"""The cases that every test of the loss is made from lie beside it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
