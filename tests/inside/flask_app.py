"""A Flask app whose views ask for rules."""

import asyncio

from flask import Blueprint, Flask, jsonify
from flask.views import MethodView, View

from ratelimit_mw.flask import RateLimited, enforce, limited
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.rules import RULES

app = Flask(__name__)
shop = Blueprint("shop", __name__, url_prefix="/shop")


@app.get("/free")
def free():
    return "free"


@app.route("/mail", methods=["GET", "POST"])
@limited("mail")
def mail():
    """Sends one."""
    return "sent", 200, {"X-Own": "1"}


@app.get("/awaited/<name>")
@limited("mail")
async def awaited(name):
    await asyncio.sleep(0)
    return f"sent to {name}"


@app.get("/export")
@limited("exports", cost=2)
def export():
    return "exported"


class Turns(MethodView):
    decorators = (limited("turns"),)

    def get(self):
        return "turned"


app.add_url_rule("/turns", view_func=Turns.as_view("turns"))


@limited("mail")
class Whole(MethodView):
    def get(self):
        return "sent"

    async def post(self):
        return "sent"


class Below(Whole):
    pass


class Methods(MethodView):
    @limited("mail")
    def get(self, name):
        return f"sent to {name}"

    @limited("mail")
    async def post(self, name):
        return f"sent to {name}"

    def put(self, name):
        return f"put {name}"


@limited("mail")
class Plain(View):
    methods = ("GET", "POST")
    init_every_request = False

    def dispatch_request(self):
        return "sent"


app.add_url_rule("/class", view_func=Whole.as_view("class"))
app.add_url_rule("/subclass", view_func=Below.as_view("subclass"))
app.add_url_rule("/methods/<name>", view_func=Methods.as_view("methods"))
app.add_url_rule("/plain", view_func=Plain.as_view("plain"))


@app.get("/inside")
def inside():
    return jsonify(left=enforce("mail").remaining)


@app.get("/inline")
@limited("3 per 10 years", key=lambda request: request.headers["X-Client"])
@limited("2 per 10 years", by="header:X-Client")
def inline():
    return "inline"


@app.get("/caught")
def caught():
    try:
        enforce("away")
    except RateLimited as denied:
        return jsonify(rule=denied.decision.rule, code=denied.code)
    return ""


@shop.before_request
def at_most():
    enforce("mail")


@shop.get("/")
def index():
    return "shop"


@shop.errorhandler(RateLimited)
def its_own(denied):
    return f"come back in {denied.decision.retry_after:.0f}", denied.code


app.register_blueprint(shop)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES)
