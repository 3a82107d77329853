"""What every benchmark here is made of: servers, load, turns, comparisons of texts, acceptance, results, shapes."""
