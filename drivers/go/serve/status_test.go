package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

func detail(t *testing.T, err error) *driverpb.StatusDetail {
	t.Helper()
	for _, detail := range grpcstatus.Convert(err).Details() {
		if detail, ok := detail.(*driverpb.StatusDetail); ok {
			return detail
		}
	}
	return nil
}

func TestEveryCodeArrives(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		answer := failed(status.Error(code, "no [room"), nil, nil, "")
		details := 0
		if code == codes.Unimplemented {
			details = 1
		}
		if got := grpcstatus.Convert(answer); got.Code() != grpccodes.Code(code) || got.Message() != "no [room" || len(got.Details()) != details {
			t.Errorf("%s: %v", code, got)
		}
	}
	answer := failed(status.Error(codes.Uninitialized, "half"), nil, &driverpb.MachineResponse{ProviderId: "a:///1"}, "")
	if grpcstatus.Code(answer) != grpccodes.FailedPrecondition {
		t.Error(answer)
	}
	if got := detail(t, answer); got.GetMachineCode() != 17 || got.GetPartial().GetProviderId() != "a:///1" {
		t.Error(got)
	}
}

func TestCodesOfOtherErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		code codes.Code
		text string
	}{
		{"wrapped", fmt.Errorf("cloud: %w", status.Error(codes.NotFound, "gone")), codes.NotFound, "gone"},
		{"text alone", errors.New("cloud: " + status.Error(codes.NotFound, "gone").Error()), codes.NotFound, "gone"},
		{"no code", errors.New("boom"), codes.Unknown, "boom"},
		{"deadline", fmt.Errorf("call: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "call: context deadline exceeded"},
		{"cancelled", context.Canceled, codes.Canceled, "context canceled"},
		{"a failure that says OK", status.Error(codes.OK, "fine"), codes.Unknown, "fine"},
	} {
		if code, text := read(c.err); code != c.code || text != c.text {
			t.Errorf("%s: %s %q", c.name, code, text)
		}
	}
}

func TestAStateIsSent(t *testing.T) {
	got := detail(t, failed(status.Error(codes.Aborted, "again"), nil, nil, "step 2"))
	if got.GetLastKnownState() != "step 2" || got.GetMachineCode() != int32(codes.Aborted) {
		t.Error(got)
	}
	if got := detail(t, failed(status.Error(codes.Aborted, "again"), nil, nil, strings.Repeat("x", longestState+1))); got != nil {
		t.Error("a state that fits no header is sent")
	}
}

func TestNoSecretLeaves(t *testing.T) {
	secret := map[string][]byte{"token": []byte("hunter2-and-more"), "short": []byte("ab"), "key": []byte("-----\nMIIBOgIBAAJBAKj34GkxFhD9\n-----")}
	for _, text := range []string{"bad token hunter2-and-more", "aHVudGVyMi1hbmQtbW9yZQ==", "key MIIBOgIBAAJBAKj34GkxFhD9 is no key"} {
		got := grpcstatus.Convert(failed(errors.New(text), secret, nil, "")).Message()
		if !strings.Contains(got, redacted) || strings.Contains(got, "hunter2") || strings.Contains(got, "MIIB") {
			t.Error(got)
		}
	}
	if got := redact("ab is a word", secret); got != "ab is a word" {
		t.Error(got)
	}
}

func TestTextsFitAHeader(t *testing.T) {
	got := grpcstatus.Convert(failed(errors.New(strings.Repeat("ü", longestText)+"\xff"), nil, nil, "")).Message()
	if len(got) > longestText+3 || !strings.HasSuffix(got, "ü…") {
		t.Error(len(got), got[len(got)-9:])
	}
}
