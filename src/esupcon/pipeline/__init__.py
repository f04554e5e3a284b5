"""From a source of data to a finished folder, and from a folder to answers: what the command does.

Nothing is imported here: `esupcon --help` must answer without torch.
"""
