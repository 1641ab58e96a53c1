"""Where time goes: events added up for a cell, a step and a session, and written as a trace."""
