# Images that serve trained models; both run as a user without rights.
#
#   docker build --target serve -t seqloom-serve .
#   docker run -p 8000:8000 -v ./runs:/runs:ro -e SEQLOOM_SERVE_TOKEN=... seqloom-serve intents
#
#   docker build --target onnx -t my-model --build-arg MODEL=exported/intents .
#   docker run -i my-model "some text"
#
# Sizes (site-packages measured on aarch64, see docs/how-to/serve.md): serve 0.8 GB, onnx 0.24 GB.
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv --without-pip /opt/seqloom
COPY constraints.txt ./
# The build of torch for CPUs; without what only developers of C++ extensions and torch's own tests need.
RUN python -m pip --python /opt/seqloom/bin/python install --no-compile -c constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple torch
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY csrc csrc
COPY src src
RUN SEQLOOM_BUILD_ENGINE=required python -m pip --python /opt/seqloom/bin/python install --no-compile \
        -c constraints.txt '.[serve]' \
    && cd /opt/seqloom/lib/python3*/site-packages \
    && rm -rf torch/test torch/include torch/share \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && find . -name '*.a' -delete \
    && find . -type d -name tests -prune -exec rm -rf {} +

FROM python:${PYTHON} AS serve
RUN useradd --system --uid 10001 --no-create-home seqloom \
    && python -m pip uninstall --yes pip
COPY --from=build /opt/seqloom /opt/seqloom
ENV PATH=/opt/seqloom/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    SEQLOOM_CACHE=/tmp/seqloom/cache SEQLOOM_STATE=/tmp/seqloom/state
USER 10001
# Runs are found by their names below /runs.
WORKDIR /
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["seqloom", "serve", "--host", "0.0.0.0"]

# A model that `seqloom export RUN --to onnx` wrote: numpy and onnxruntime, no torch.
FROM python:${PYTHON} AS onnx-build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
RUN python -m pip install --no-compile --no-deps --target /opt/packages -c constraints.txt \
        numpy onnxruntime flatbuffers packaging protobuf \
    && cd /opt/packages \
    && rm -rf onnxruntime/transformers onnxruntime/tools onnxruntime/quantization onnxruntime/datasets bin \
    && find . -type d -name tests -prune -exec rm -rf {} +

FROM python:${PYTHON} AS onnx
ARG MODEL
RUN useradd --system --uid 10001 --no-create-home seqloom \
    && python -m pip uninstall --yes pip
COPY --from=onnx-build /opt/packages /opt/packages
COPY ${MODEL} /model
ENV PYTHONPATH=/opt/packages PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /model
ENTRYPOINT ["python", "run.py"]
