"""The kernels' benchmarks: ``pytest bench``. The method stands in docs/benchmarks.md."""
