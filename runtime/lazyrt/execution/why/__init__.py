"""Why a graph is new: the detectors of causes, each in the file of what it looks at."""
