package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// readConfig sets the flags of cmd that the command line does not from a TOML file: each key is the name of a flag, and what can be given
// several times is a list.
func readConfig(cmd *cobra.Command, path string) error {
	if path == "" {
		return nil
	}
	var values map[string]any
	meta, err := toml.DecodeFile(path, &values)
	if err != nil {
		var bad toml.ParseError
		if errors.As(err, &bad) {
			return usageError("%s: line %d: %s", path, bad.Position.Line, bad.Message)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return usageError("--config %s: there is no such file", path)
		}
		return fmt.Errorf("--config: %w", err)
	}
	for _, key := range meta.Keys() {
		name := key.String()
		f := cmd.Flags().Lookup(name)
		if f == nil || f.Hidden || name == "config" || name == "help" {
			return usageError("%s: %s is not a flag of `%s`: have %s", path, name, cmd.CommandPath(), strings.Join(configKeys(cmd), ", "))
		}
		if f.Changed {
			continue // the command line comes first
		}
		if err := setFlag(f, values[name]); err != nil {
			return usageError("%s: %s: %w", path, name, err)
		}
	}
	return nil
}

// configKeys lists what a file may set.
func configKeys(cmd *cobra.Command) (l []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !slices.Contains([]string{"config", "help", "json"}, f.Name) {
			l = append(l, f.Name)
		}
	})
	sort.Strings(l)
	return l
}

func setFlag(f *pflag.Flag, v any) error {
	list, repeated := v.([]any)
	if !repeated {
		list = []any{v}
	} else if _, ok := f.Value.(pflag.SliceValue); !ok {
		return fmt.Errorf("one value is wanted, not a list")
	}
	for _, one := range list {
		switch one.(type) {
		case string, int64, bool:
		default:
			return fmt.Errorf("want text in quotes, or a number: not %v", one)
		}
		err := f.Value.Set(fmt.Sprint(one))
		if bad := (*strconv.NumError)(nil); errors.As(err, &bad) {
			want := "a number"
			if f.Value.Type() == "bool" {
				want = "true or false"
			}
			return fmt.Errorf("want %s, not %q: %w", want, bad.Num, bad.Err)
		}
		if err != nil {
			return err
		}
	}
	f.Changed = true
	return nil
}
