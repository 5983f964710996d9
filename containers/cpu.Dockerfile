# fedkeel on CPUs, of this checkout:  scripts/build_container.sh cpu
FROM python:3.12-slim

# The package index has PyTorch for x86-64 only with CUDA, 4 GB more. TORCH_INDEX: where builds without CUDA are.
ARG TORCH_INDEX=
WORKDIR /src
COPY constraints constraints
RUN pip install --no-cache-dir --no-deps --constraint constraints/cpu.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints/cpu.txt ".[download]" && rm -rf /src

# runs are written into the folder that is mounted here, data sets are kept in /data
RUN useradd --create-home fedkeel && mkdir -p /runs /data && chown fedkeel /runs /data
USER fedkeel
ENV FEDKEEL_DATA=/data
WORKDIR /runs
VOLUME ["/runs", "/data"]
ENTRYPOINT ["fedkeel"]
CMD ["--help"]
