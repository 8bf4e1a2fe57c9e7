// containerd, ctr and the shim for runc in one program, as most of their code is the same: it takes the name that it
// was started by. Names must be hard links, since the shim starts itself again by its real path.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

func main() {
	name := filepath.Base(os.Args[0])
	run := command.App().Run
	switch name {
	case "containerd-shim-runc-v2":
		keepPlugins(ofShim)
		shim.Run(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
		return
	case "ctr":
		run = app.New().Run
	default:
		keepPlugins(func(each plugin.Registration) bool { return !ofShim(each) })
	}
	if err := run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// The shim's only plugin besides those that it registers when it runs.
func ofShim(each plugin.Registration) bool {
	return each.Type == plugins.TTRPCPlugin && each.ID == "task"
}

// All packages register their plugins before main, and each program would start those of the others.
func keepPlugins(wanted func(plugin.Registration) bool) {
	found := registry.Graph(func(*plugin.Registration) bool { return false })
	registry.Reset()
	for index := range found {
		if wanted(found[index]) {
			registry.Register(&found[index])
		}
	}
}
