"""One file per technique of techniques.py, by its name: how it is compared with plain KL at an equal budget, for `bench techniques`.

Each has `compare(bench, seed) -> Pair`; FIGURE says what is compared where that is not the held-out KL to the plain cache's teacher.
"""
