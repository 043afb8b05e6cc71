"""The scripts in data/ import one another as they do when they are run."""

import sys

from distill_core import paths

sys.path.insert(0, str(paths.data_dir()))
