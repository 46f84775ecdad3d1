# An image with the environment of constraints.txt. It has not been built where this is tested.
#
#   docker build -t grpo_jax .                               # CPU
#   docker build -t grpo_jax --build-arg EXTRAS=tpu,plot,gcs .   # on a TPU VM: run it with --privileged --net=host
#   docker build -t grpo_jax --build-arg EXTRAS=cuda,plot .  # run it with --gpus=all
#   docker run --rm -v "$PWD/runs:/grpo_jax/runs" grpo_jax --config=experiments/arithmetic.py --workdir=runs/arithmetic
FROM python:3.11-slim
ARG EXTRAS=plot
WORKDIR /grpo_jax
COPY . .
RUN bash -c ". launch/venv.sh $EXTRAS" && rm -rf /root/.cache
ENV EXTRAS=$EXTRAS
ENTRYPOINT ["launch/local.sh"]
