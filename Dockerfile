# syntax=docker/dockerfile:1
# One wheel, two images: `docker build --target operator .` (no torch) and `docker build --target runtime .` (CUDA).

FROM python:3.12-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir "hatchling>=1.27" build
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY runtime runtime
COPY kernels kernels
RUN python -m build --wheel --no-isolation --outdir /dist

FROM python:3.12-slim AS operator
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir "$(echo /dist/*.whl)[operator]"
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["python", "-m", "paceline_operator"]

# torch's wheels bring their own CUDA libraries; Triton compiles its launchers with the C compiler and Python's headers.
FROM nvidia/cuda:13.0.1-base-ubuntu24.04 AS runtime
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN pip install --no-cache-dir torch==2.13.0
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir "$(echo /dist/*.whl)[runtime,gpu]"
# The root file system is read-only in the cluster: kernel caches go where an emptyDir is mounted.
ENV HOME=/tmp TRITON_CACHE_DIR=/tmp/triton
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["paceline"]
