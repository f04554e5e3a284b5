"""What this machine does: the losses beside their textbook form, and where the time of a training step goes."""
