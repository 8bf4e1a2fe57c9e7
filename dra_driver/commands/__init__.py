"""The command line: one module a command, each loaded only when its command is called. No driver logic here.

A command module has ``configure(parser)``, which adds its arguments, and ``run(options) -> int``, which returns
the exit code and may raise any DriverError.
"""
