"""Speed of tpulab itself, measured: nothing here is a test, nothing fails when a machine is slow.

    python -m tests.benchmarks                 everything, one table after the other
    python -m tests.benchmarks check ladder    some of it
    python -m tests.benchmarks --json out.json also as data

Every figure is the median of a few runs, each in a process of its own with an empty home folder
(`TPULAB_HOME`), unless the table says that something is kept.
"""
