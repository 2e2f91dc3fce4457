"""One program a framework. Each runs in that framework's environment, where Kellet is not.

They are given a job (JSON), and write what they came to beside it: when each round ended, and
the model. So they import nothing of ours but their neighbours here, by bare names.
"""
