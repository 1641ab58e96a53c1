"""Files that are passed on: a session's report, a notebook run as a page, and what they may tell."""
