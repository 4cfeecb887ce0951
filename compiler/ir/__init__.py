"""The values everything else speaks of: mesh, placement, tensor type, program."""
