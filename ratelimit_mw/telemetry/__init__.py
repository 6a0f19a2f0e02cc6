"""Exports what a limiter counts: `telemetry.prometheus` and `telemetry.opentelemetry`.

Each of the two imports its library, which no other module needs, apart from the service. All else is internal.
"""
