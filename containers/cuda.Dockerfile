# fedkeel on NVIDIA GPUs, of this checkout:  scripts/build_container.sh cuda
# PyTorch's own wheels bring CUDA along; the host gives the driver (docker run --gpus all).
FROM python:3.12-slim

# Triton compiles small C files when it starts a kernel
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".[download]" && rm -rf /src

# runs are written into the folder that is mounted here, data sets are kept in /data
RUN useradd --create-home fedkeel && mkdir -p /runs /data && chown fedkeel /runs /data
USER fedkeel
ENV FEDKEEL_DATA=/data NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /runs
VOLUME ["/runs", "/data"]
ENTRYPOINT ["fedkeel"]
CMD ["--help"]
