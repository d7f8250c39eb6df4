#!/usr/bin/env bash
# Apptainer out of a Debian tree of its own, for machines whose release has no package of it.
#
# Put as <folder>/bin/apptainer beside the tree <folder>/sid. The tree becomes the root of a mount
# namespace, with this machine's other folders in it; nothing stays mounted after the command.
# chroot would not do: the kernel allows no user namespaces in it, which Apptainer runs images with.
set -euo pipefail
tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../sid")

# Images are built as a root with all user ids, since files get other owners, and run as one user.
# Of a user namespace both have all capabilities, which Apptainer asks for and this machine's root
# may lack.
enter=(unshare --user --map-root-user)
[ "${1:-}" != build ] || enter=(unshare --user --map-users=0,0,65536 --map-groups=0,0,65536 --setuid 0 --setgid 0)

# Callers without administration's folders on their PATH lack pivot_root.
PATH=$PATH:/usr/sbin:/sbin
# shellcheck disable=SC2016  # the inner shell expands them
exec unshare --mount --propagation private bash -c '
    set -euo pipefail
    tree=$1 here=$PWD
    shift
    mount --bind "$tree" "$tree"
    for folder in /*/ /var/tmp/; do
        folder=${folder%/}
        case $folder in
            /bin | /sbin | /lib* | /usr | /etc | /var | /run | /boot | /lost+found) continue ;;
        esac
        mkdir -p "$tree$folder"
        mount --rbind "$folder" "$tree$folder"
    done
    mkdir -p "$tree/.machine"
    cd "$tree"
    pivot_root . .machine
    umount --lazy /.machine
    cd "$here"
    exec "$@"
' bash "$tree" "${enter[@]}" /usr/bin/apptainer "$@"
