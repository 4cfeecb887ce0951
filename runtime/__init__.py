"""How programs run on torch.distributed, or all ranks in one process."""
