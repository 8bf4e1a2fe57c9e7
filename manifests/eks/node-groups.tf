# Terraform: the node groups of manifests/eks/cluster.yaml, with terraform-aws-modules/eks 21.x. Take one, or both.
# Placeholders: cluster name, VPC and subnet ids, instance types and sizes.

locals {
  kubernetes_version   = "1.36"
  bottlerocket_version = "1.66.0" # or newer, see ../bottlerocket/gpu-dra.toml

  gpu_labels = {
    "gpu-mode"               = "dra"
    "nvidia.com/gpu.present" = "true"
  }
  gpu_taints = {
    gpu = {
      key    = "nvidia.com/gpu"
      value  = "true"
      effect = "NO_SCHEDULE"
    }
  }
}

# EKS names releases of Bottlerocket by version and commit, as 1.66.0-0a1b2c3d.
data "aws_ssm_parameter" "bottlerocket" {
  name = "/aws/service/bottlerocket/aws-k8s-${local.kubernetes_version}-nvidia/x86_64/${local.bottlerocket_version}/image_version"
}

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "~> 21.0"

  name               = "example-cluster"
  kubernetes_version = local.kubernetes_version
  vpc_id             = "vpc-00000000000000000"
  subnet_ids         = ["subnet-00000000000000000", "subnet-11111111111111111"]

  eks_managed_node_groups = {
    gpu-al2023 = {
      ami_type       = "AL2023_x86_64_NVIDIA"
      instance_types = ["g6.2xlarge"]
      min_size       = 1
      max_size       = 3
      desired_size   = 2
      labels         = local.gpu_labels
      taints         = local.gpu_taints
    }

    gpu-bottlerocket = {
      ami_type                       = "BOTTLEROCKET_x86_64_NVIDIA"
      use_latest_ami_release_version = false
      ami_release_version            = nonsensitive(data.aws_ssm_parameter.bottlerocket.value)
      instance_types                 = ["g6.2xlarge"]
      min_size                       = 1
      max_size                       = 3
      desired_size                   = 2
      labels                         = local.gpu_labels
      taints                         = local.gpu_taints
      bootstrap_extra_args           = file("${path.module}/../bottlerocket/gpu-dra.toml")
    }
  }
}
