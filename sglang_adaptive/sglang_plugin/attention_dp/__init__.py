"""One number of steps a round for all ranks of attention DP, agreed in the gather that SGLang makes before a round."""
