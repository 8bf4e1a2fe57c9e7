// Command cdi_validate loads a directory of CDI specs the way a container runtime does and says what came of it.
//
//	cdi_validate DIRECTORY DEVICE...
//
// Every file must load, every DEVICE (vendor/class=name) must resolve, and all of them together must apply to one
// container. The result is printed as JSON; problems go to standard error and make the exit code 1.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// report is what a runtime would do to a container that has all the devices.
type report struct {
	Devices         []string          `json:"devices"`
	MinimumVersions map[string]string `json:"minimumVersions"`
	Env             []string          `json:"env"`
	Nodes           []node            `json:"nodes"`
	Mounts          map[string]string `json:"mounts"`
	CreateContainer [][]string        `json:"createContainer"`
}

type node struct {
	Path  string `json:"path"`
	Type  string `json:"type"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

func main() {
	if len(os.Args) < 2 {
		fail("usage: cdi_validate DIRECTORY DEVICE...")
	}
	result, err := check(os.Args[1], os.Args[2:])
	if err != nil {
		fail(err.Error())
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}

func check(directory string, devices []string) (*report, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directory), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	for path, problems := range cache.GetErrors() {
		return nil, fmt.Errorf("%s: %v", path, problems)
	}
	for _, device := range devices {
		if _, _, _, err := parser.ParseQualifiedName(device); err != nil {
			return nil, err
		}
		if cache.GetDevice(device) == nil {
			return nil, fmt.Errorf("%s: no such device, there are %v", device, cache.ListDevices())
		}
	}
	container := &oci.Spec{}
	if _, err := cache.InjectDevices(container, devices...); err != nil {
		return nil, err
	}
	return describe(cache, container)
}

func describe(cache *cdi.Cache, container *oci.Spec) (*report, error) {
	result := &report{
		Devices:         cache.ListDevices(),
		MinimumVersions: map[string]string{},
		Mounts:          map[string]string{},
	}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			version, err := specs.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return nil, err
			}
			result.MinimumVersions[filepath.Base(spec.GetPath())] = version
		}
	}
	if container.Process != nil {
		result.Env = container.Process.Env
	}
	for _, mount := range container.Mounts {
		result.Mounts[mount.Destination] = mount.Source
	}
	if container.Hooks != nil {
		for _, hook := range container.Hooks.CreateContainer {
			result.CreateContainer = append(result.CreateContainer, append([]string{hook.Path}, hook.Args...))
		}
	}
	if container.Linux != nil {
		for _, device := range container.Linux.Devices {
			result.Nodes = append(result.Nodes, node{device.Path, device.Type, device.Major, device.Minor})
		}
	}
	return result, nil
}
