# weft serve in a container, built without a network from the wheels of `make wheels` (docs/how-to/deploy.md):
#     make wheels && docker build --network none --build-arg PYTHON=3.11 -t weft .
#     docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8080:8080 -v "$PWD/runs:/runs:ro" -e WEFT_API_KEYS=... weft /runs/names
# PYTHON is the version that made the wheels.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
COPY wheels /wheels
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --no-index --find-links /wheels 'weft[serve,ctranslate2]'

FROM python:${PYTHON}-slim
COPY --from=build /venv /venv
# a fixed number, which Kubernetes needs to check that it is not root
USER 10001:10001
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
ENTRYPOINT ["weft", "serve", "--host", "0.0.0.0", "--port", "8080"]
