"""Python functions of one score become programs: stand-ins, captures, and the functions they may
call.
"""
