"""A Flask app with a blueprint, a class-based view and converters."""

from flask import Blueprint, Flask
from flask.views import MethodView

from ratelimit_mw.flask import limited
from ratelimit_mw.wsgi import RateLimitMiddleware

app = Flask(__name__, static_folder=None)
api = Blueprint("api", __name__, url_prefix="/api")


@app.post("/login")
def login():
    return ""


@app.get("/<any(health, ready):name>")
def state(name):
    return ""


@api.get("/items/<int:number>")
@limited("5 per minute")
def item(number):
    return ""


@api.route("/mail/<string(length=2):language>", methods=["GET", "POST"])
@limited("mail")
def mail(language):
    return ""


class Orders(MethodView):
    def get(self):
        return ""

    @limited("mail")
    def post(self):
        return ""


api.add_url_rule("/orders/", view_func=Orders.as_view("orders"))
app.register_blueprint(api)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, {"domain": "d", "rules": [{"name": "mail", "limit": "1 per year"}]})
