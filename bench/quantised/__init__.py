"""What int8 weights cost: accuracy, memory and time, beside float32.

    python -m bench.quantised                      # WISDM, one seed: under a minute
    python -m bench.quantised --full               # the tables of docs/evidence/quantised.md
    python -m bench.quantised --full --task har    # one task's part of them

A run keeps each cell as it finishes, and a run that follows goes on from there.
"""
