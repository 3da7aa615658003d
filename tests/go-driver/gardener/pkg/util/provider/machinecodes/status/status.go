// Package status replaces Gardener's package of this path: the same names, signatures and text.
package status

import (
	"fmt"
	"regexp"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
)

// Status is an error with a machine code.
type Status struct {
	code    codes.Code
	message string
	cause   error
}

// Code is the machine code.
func (s *Status) Code() codes.Code {
	if s == nil {
		return codes.OK
	}
	return s.code
}

// Message is the text without the code.
func (s *Status) Message() string { return s.message }

// Cause is the error that the status wraps.
func (s *Status) Cause() error { return s.cause }

func (s *Status) Error() string {
	return fmt.Sprintf("machine codes error: code = [%s] message = [%s]", s.Code(), s.Message())
}

// New is a status.
func New(c codes.Code, message string) *Status { return &Status{code: c, message: message} }

// Error is a status as an error.
func Error(c codes.Code, message string) error { return New(c, message) }

// WrapError is a status with its cause.
func WrapError(c codes.Code, message string, cause error) *Status {
	return &Status{code: c, message: message, cause: cause}
}

var form = regexp.MustCompile(`\[([^\[\]]*)\][^\[\]]*\[([^\[\]]*)\]`)

// FromError parses the text of an error. An error without a code gives Unknown, and `ok` is false.
func FromError(err error) (s *Status, ok bool) {
	if err == nil {
		return nil, true
	}
	if found := form.FindStringSubmatch(err.Error()); found != nil {
		return New(codes.StringToCode(found[1]), found[2]), true
	}
	return WrapError(codes.Unknown, err.Error(), err), false
}
