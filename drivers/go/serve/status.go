package serve

import (
	"context"
	"encoding/base64"
	"errors"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

const (
	// A message travels in a header, twice where there is a detail, and peers limit the size of headers.
	longestText = 2000
	// So does a state; a longer one is left out, since a part of it is none.
	longestState = 16 << 10
	// Shorter values of Secrets are words that messages need.
	shortestSecret = 6
	// A line of a value is looked for on its own if it is as long.
	longLine = 16
	redacted = "<redacted>"
)

// failed is an error of a driver on the wire, with what the driver knows in spite of it.
func failed(err error, secret map[string][]byte, known *driverpb.MachineResponse, state string) error {
	code, message := read(err)
	message = cut(strings.ToValidUTF8(redact(message, secret), "\uFFFD"))
	number := grpccodes.Code(code)
	if code == codes.Uninitialized {
		// gRPC has no such number: the detail says it.
		number = grpccodes.FailedPrecondition
	}
	if len(state) > longestState {
		state = ""
	}
	answer := grpcstatus.New(number, message)
	if code != codes.Uninitialized && known == nil && state == "" {
		return answer.Err()
	}
	detail := &driverpb.StatusDetail{MachineCode: int32(code), Partial: known, LastKnownState: strings.ToValidUTF8(state, "\uFFFD")}
	if detailed, err := answer.WithDetails(detail); err == nil {
		answer = detailed
	}
	return answer.Err()
}

// read is the code and the message of an error. A driver that fails with OK has no code.
func read(err error) (codes.Code, string) {
	var coded *status.Status
	if !errors.As(err, &coded) {
		var isCoded bool
		// The text of an error may have a code although its type is lost.
		if coded, isCoded = status.FromError(err); !isCoded {
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return codes.DeadlineExceeded, err.Error()
			case errors.Is(err, context.Canceled):
				return codes.Canceled, err.Error()
			}
		}
	}
	if code := coded.Code(); code != codes.OK && code <= codes.Uninitialized {
		return code, coded.Message()
	}
	return codes.Unknown, coded.Message()
}

// redact takes the values of a Secret out of a text.
func redact(text string, secret map[string][]byte) string {
	var values []string
	for _, value := range secret {
		values = append(values, base64.StdEncoding.EncodeToString(value))
		if !utf8.Valid(value) {
			continue
		}
		values = append(values, strings.TrimSpace(string(value)))
		for _, line := range strings.Split(string(value), "\n") {
			if line = strings.TrimSpace(line); len(line) >= longLine {
				values = append(values, line)
			}
		}
	}
	// The longest first: a part of it would leave the rest standing.
	sort.Slice(values, func(i, j int) bool { return len(values[i]) > len(values[j]) })
	for _, value := range values {
		if len(value) >= shortestSecret {
			text = strings.ReplaceAll(text, value, redacted)
		}
	}
	return text
}

// cut shortens a text to what a header holds, between two characters.
func cut(text string) string {
	if len(text) <= longestText {
		return text
	}
	end := longestText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
