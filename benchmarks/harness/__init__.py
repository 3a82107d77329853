"""Building blocks of all benchmarks: servers, load, turns, text comparisons, acceptance, results, shapes."""
