"""What a project's clients are told: a denial as a response of Django's, and our headers beside a view's own."""

from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.response.answers import Answers, Denial, phrase


def answer(denial: Denial[str]) -> HttpResponse:
    """The response to a request that is denied."""
    status, headers, body = denial
    return HttpResponse(body, status=status, reason=phrase(status), headers=dict(headers))


def tell(answers: Answers[str], response: HttpResponseBase, verdict: Verdict) -> None:
    """Put our headers beside those of `response`."""
    if not answers.rated:
        return
    own: Any = response.items()
    for name, value in answers.beside(own, verdict)[len(own) :]:
        response[name] = value
