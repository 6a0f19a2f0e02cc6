"""What a decision costs, counted in steps of the interpreter: a verdict that no busy machine changes."""

import sys


def steps(limiter, make, context):
    """How many bytecodes a decision runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        request = make(context)
        limiter.engine.execute(limiter.engine.planner.plan(limiter.rules, request), limiter.rules)
    finally:
        sys.settrace(before)
    return count
