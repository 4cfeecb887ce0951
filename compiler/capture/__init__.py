"""From an nn.Module and example inputs to one joint graph."""
