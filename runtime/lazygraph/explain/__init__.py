"""Why a program is new: facts of two programs, a table of causes, and the edits that follow.

`facts` describes a program by small tables, `causes` says which row that differs is a cause,
`attribute` gives each edit to one cause, and `compare` puts it together.
"""
