"""How much work a function does, counted in steps of the interpreter: a verdict that no busy machine changes."""

import sys
from concurrent.futures import ThreadPoolExecutor


def steps(work, within=""):
    """How many bytecodes `work` runs, in files of the folder `within` or in all.

    It runs in a thread of its own, so that the measurement of coverage goes on.
    """
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(within):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    def run():
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
    return count


def steps_of_a_decision(limiter, make, context):
    """How many bytecodes a decision runs on the request that `make` makes of this scope or environ."""

    def decide():
        request = make(context)
        limiter.engine.execute(limiter.engine.planner.plan(limiter.rules, request), limiter.rules)

    return steps(decide)
