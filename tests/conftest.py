import os
import pathlib
import sys

# Before torch is imported anywhere: on a few cores its threads fight each other and tests take a hundred times longer.
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = pathlib.Path(__file__).parent
for folder in (HERE, HERE / "engine"):
    sys.path.insert(0, str(folder))
