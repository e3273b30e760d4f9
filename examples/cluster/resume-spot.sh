#!/bin/bash
# A job on a spot instance that saves when the provider takes the instance, and
# goes on when the next instance runs the same command.
#
#   examples/cluster/resume-spot.sh -np 4 python train.py
#
# train.py has tfring.callbacks.Checkpoint(FOLDER) in its callbacks, with a
# folder that outlives the instance, such as one on a network file system. Exit
# status 75 asks for another start.
set -u
metadata=${METADATA:-http://169.254.169.254}

# Succeeds once the provider takes the instance: in two minutes on EC2, in 30
# seconds on Compute Engine.
is_taken() {
    local token
    if token=$(curl -sf -m 2 -X PUT "$metadata/latest/api/token" \
        -H "X-aws-ec2-metadata-token-ttl-seconds: 60"); then
        curl -sf -m 2 "$metadata/latest/meta-data/spot/instance-action" \
            -H "X-aws-ec2-metadata-token: $token"
    else
        curl -sf -m 2 "$metadata/computeMetadata/v1/instance/preempted" \
            -H "Metadata-Flavor: Google" | grep -q TRUE
    fi
}

# The process of this shell becomes tfringrun.
while kill -0 $$; do
    is_taken && kill -TERM $$ && break
    sleep 5
done > /dev/null 2>&1 &
exec tfringrun "$@"
