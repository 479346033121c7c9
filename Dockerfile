# The service without its development parts. It needs PostgreSQL and a bucket; settings come from the
# environment. Build from this folder:  docker build -t execution-plane-service .

FROM python:3.11-slim AS build
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /opt/execution-plane
COPY requirements-service.lock ./
RUN uv venv .venv \
    && uv pip sync --python .venv/bin/python --require-hashes --compile-bytecode requirements-service.lock
COPY pyproject.toml alembic.ini LICENSE ./
COPY alembic alembic
COPY app app
RUN .venv/bin/python -m compileall -q app alembic

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin execution-plane
WORKDIR /opt/execution-plane
COPY --from=build /opt/execution-plane ./
ENV PATH=/opt/execution-plane/.venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    EXECUTION_PLANE_SERVER__HOST=0.0.0.0 \
    EXECUTION_PLANE_SERVER__PORT=8080
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "app"]
CMD ["serve"]
