"""What the tests ask of gunicorn beyond its command line."""

control_socket_disable = True  # it would lie in the home directory, and several servers run at once


def post_worker_init(worker):
    worker.log.info("Worker is ready")  # gunicorn itself says only that it will boot one
